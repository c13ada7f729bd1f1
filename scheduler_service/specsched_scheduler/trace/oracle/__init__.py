"""What an oracle would have verified on recorded steps, and what a schedule lost against it.

No recording has the true probabilities of drafts, only outcomes. So there are three oracles, of
which the first two know less than the one that cannot be had, and the third one more:

- confidence: knows the confidences of the very drafts that a step verifies, and how often drafts of
  such confidences were accepted. A schedule that has learned everything could do as well, if it
  might look at those confidences.
- request: knows, too, how the drafts of this very request fared in its other steps, later ones
  included.
- clairvoyant: knows what will be accepted. Nobody could do better, and most of what it gains is
  luck.
"""

from __future__ import annotations
