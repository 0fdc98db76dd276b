"""The exceptions that are no fault of the program: shown as one line, without a traceback."""

_LONGEST = 1000  # characters; a file's own words may be megabytes


class UserError(Exception):
    """Bad input; exit status 2. One line: the key or file, what is wrong, what would be right."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        line = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
        # what a terminal would obey, or cannot show, is spelt out
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))


class Stopped(BaseException):
    """A signal asked the work to end, and it ended in order; exit status 128 + signal.

    No Exception, as KeyboardInterrupt is none: whoever handles errors lets it pass.
    """

    def __init__(self, message: str, signal: int, together: bool = False) -> None:
        """together: all processes of the run agreed on it, none is left waiting."""
        super().__init__(message)
        self.signal, self.together = signal, together
