"""Errors that users may catch by their class."""

from __future__ import annotations


class PeewitError(ValueError):
    """What was given cannot be used; the base class of all errors of the library's own.

    The message says what was given, what was expected and what to do. Python's own errors stay where they say it
    best: `KeyError` and `IndexError` of a look-up, `AttributeError` of a name, `FileNotFoundError` of a path.

    Example:
        >>> try:
        ...     pw.fit(model, (x, y), "classification", structure="dig")
        ... except pw.PeewitError as error:
        ...     print(str(error).partition(" Known")[0])
        structure='dig' is not known; did you mean 'diag'?
    """


class ArgumentTypeError(PeewitError, TypeError):
    """An argument has a type that cannot be used; also a `TypeError`.

    Example:
        >>> try:
        ...     la.predict("a text")
        ... except pw.ArgumentTypeError as error:
        ...     print(str(error).partition(";")[0])
        x is a str
    """


class MismatchError(PeewitError):
    """The network is not the one that was fitted, or a saved file needs another likelihood or version.

    A posterior belongs to a network with its weights, buffers, dtype and device. Fit again after further training.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     la.save(f"{folder}/posterior.safetensors")
        ...     try:
        ...         pw.load(f"{folder}/posterior.safetensors", torch.nn.Linear(2, 3))
        ...     except pw.MismatchError:
        ...         print("another network")
        another network
    """


class NotFiniteError(PeewitError):
    """Numbers in the data, in the network or in its curvature are NaN or infinite.

    Example:
        >>> try:
        ...     pw.fit(model, (x / 0, y), "classification")
        ... except pw.NotFiniteError:
        ...     print("clean the inputs")
        clean the inputs
    """


class MissingPackageError(PeewitError, ImportError):
    """A package is not installed that this call needs; the message says what to type. Also an `ImportError`.

    Example:
        >>> issubclass(pw.MissingPackageError, ImportError)
        True
    """
