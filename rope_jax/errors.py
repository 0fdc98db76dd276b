"""The exceptions that are not bugs: shown as one line, without a traceback."""

_MAX_CHARACTERS = 1000  # a file that a message quotes may have megabytes in one line


class UserError(Exception):
    """Bad input; exit status 2. One line: the key or file, what is wrong, what would be right."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        line = line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 3] + "..."
        # escape what a terminal would obey or cannot show
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))


class Stopped(BaseException):
    """A signal asked the work to end, and it ended in order; exit status 128 + signal.

    Like KeyboardInterrupt it is not an Exception, so code that handles errors lets it pass.
    """

    def __init__(self, message: str, signal: int, together: bool = False) -> None:
        """together: all processes of the run agreed to stop, so none waits for another."""
        super().__init__(message)
        self.signal, self.together = signal, together
