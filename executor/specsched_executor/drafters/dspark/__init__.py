"""DSpark: a parallel backbone, a Markov head and a confidence head (arXiv 2607.05147)."""

from specsched_executor.drafters.dspark._errors import DrafterCheckpointError
from specsched_executor.drafters.dspark.checkpoint import (
    DSparkCheckpoint,
    load_checkpoint,
    save_checkpoint,
)
from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.drafters.dspark.drafter import DSparkDrafter
from specsched_executor.drafters.dspark.layout import tensor_shapes

__all__ = [
    "DSparkCheckpoint",
    "DSparkConfig",
    "DSparkDrafter",
    "DrafterCheckpointError",
    "load_checkpoint",
    "save_checkpoint",
    "tensor_shapes",
]
