"""The one exception that means "the user can mend this": shown as one line, exit status 2."""


class UserError(Exception):
    """Bad input. One line: the key or file, what is wrong, and what would be right."""
