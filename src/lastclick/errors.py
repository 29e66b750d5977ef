"""The one error that is the user's to mend."""


class UserError(Exception):
    """Something in the input, the parameters or the machine has to be changed by the user.

    The message is all that the user sees (stages print it without a traceback), so it says what
    is wrong, where (file, line, key or user) and what to do about it.
    """
