"""Exceptions that are not bugs: shown as one line, without a traceback."""

_MAX_CHARACTERS = 1000  # a message may quote a file with megabytes in one line


class UserError(Exception):
    """Bad input; exit status 2. One line: the key or file, what is wrong, what would be right."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        line = line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 3] + "..."
        super().__init__(printable(line))


def printable(text: str) -> str:
    """Return a text with what a terminal would interpret or cannot show as escapes: \\n, \\x1b."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Stopped(BaseException):
    """The work ended cleanly after a signal; exit status 128 + signal.

    Like KeyboardInterrupt it is not an Exception, so code that handles errors lets it pass.
    """

    def __init__(self, message: str, signal: int, together: bool = False) -> None:
        """together: all processes of the run agreed to stop, so none waits for another."""
        super().__init__(message)
        self.signal, self.together = signal, together
