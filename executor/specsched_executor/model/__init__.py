"""The target model: checkpoints in, a paged forward pass out."""

from specsched_executor.model._errors import (
    ModelFormatError,
    ModelLoadError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from specsched_executor.model.decoder import DecoderModel
from specsched_executor.model.default_model import default_model_path
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.linear import LinearLayout
from specsched_executor.model.loading import LoadedModel, load_model
from specsched_executor.model.options import LoadOptions, fastest_dtype
from specsched_executor.model.spec import DecoderSpec, Dtype

__all__ = [
    "DecoderModel",
    "DecoderSpec",
    "Dtype",
    "LinearLayout",
    "LoadOptions",
    "LoadedModel",
    "ModelFormatError",
    "ModelLoadError",
    "ModelNotFoundError",
    "PagedKvCache",
    "UnsupportedModelError",
    "default_model_path",
    "fastest_dtype",
    "load_model",
]
