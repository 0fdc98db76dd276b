"""The exceptions that are no fault of the program: shown as one line, without a traceback."""


class UserError(Exception):
    """Bad input; exit status 2. One line: the key or file, what is wrong, what would be right."""


class Stopped(Exception):
    """A signal asked the work to end, and it ended in order; exit status 128 + signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
