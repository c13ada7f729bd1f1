"""What the scheduler learns from finished steps: calibration and cost. Pure: no gRPC, no clock."""
