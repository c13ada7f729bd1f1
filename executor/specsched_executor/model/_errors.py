"""What can be wrong with a model that was asked for.

ModelLoadError
├── ModelNotFoundError          no such file, folder or installed package
├── ModelFormatError            a file that is truncated, foreign or inconsistent
└── UnsupportedModelError       a sound checkpoint of something this executor does not serve
"""

from __future__ import annotations


class ModelLoadError(Exception):
    """A model could not be loaded; the message names the file and what is accepted."""


class ModelNotFoundError(ModelLoadError):
    """There is nothing at the given place."""


class ModelFormatError(ModelLoadError):
    """The file is not what it claims to be."""


class UnsupportedModelError(ModelLoadError):
    """The checkpoint is readable but asks for something that is not served."""
