"""Calibration: from the drafter's confidences to probabilities that hold."""
