"""The one error of the runtime."""


class BundleError(Exception):
    """A bundle is damaged, incomplete or unsafe, or it was asked for something that it does not hold."""
