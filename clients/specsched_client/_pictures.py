"""Pictures that the client's commands draw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from specsched_protocol.picture import MissingMatplotlibError, PictureError

from specsched_client._errors import InvalidRequestError, MissingDependencyError

__all__ = ["picture_errors"]


@contextlib.contextmanager
def picture_errors() -> Iterator[None]:
    """Raise what cannot be drawn in the block as an error of the client."""
    try:
        yield
    except MissingMatplotlibError as error:
        raise MissingDependencyError(str(error)) from error
    except PictureError as error:
        raise InvalidRequestError(str(error)) from error
