"""Arguments of the command line before they are parsed."""

from __future__ import annotations


def find_value(options: list[str], flag: str) -> str | None:
    """What an option is given last: --flag VALUE or --flag=VALUE.

    >>> find_value(["--epochs", "3", "--device=cpu"], "--device")
    'cpu'
    """
    found = None
    for option, following in zip(options, [*options[1:], None]):
        if option == flag:
            found = following
        elif option.startswith(f"{flag}="):
            found = option.removeprefix(f"{flag}=")
    return found
