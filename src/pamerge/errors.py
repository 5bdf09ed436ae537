"""The exceptions and warnings of pamerge."""


class PamergeError(Exception):
    """Base of every error that pamerge raises on purpose.

    A message says what failed, what was expected, and what to do about it.
    """


class CaptureError(PamergeError):
    """A network cannot be turned into a :class:`~pamerge.graph.LayerGraph`."""


class FileFormatError(PamergeError):
    """A saved file is truncated, damaged, of another kind, or newer than this version of pamerge."""


class PamergeWarning(UserWarning):
    """Something works but is probably not what the user wants."""
