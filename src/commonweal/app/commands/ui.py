"""`commonweal ui`: runs on a page of this computer's browser."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from commonweal.base.errors import ConfigError, install


def ui(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs below it.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option(help="The port; 0 for any free port.", min=0, max=65535)
    ] = 8765,
) -> None:
    """Browse, compare and watch runs in the browser.

    For example: commonweal ui demo

    The page is served to this computer only, and writes nothing. To see it from another computer,
    forward the port: ssh -L 8765:127.0.0.1:8765 HOST
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{str(folder)!r} is not a folder: name one with runs below it (commonweal demo makes "
            "one)"
        )
    try:
        import uvicorn

        from commonweal.app.ui.server import application
    except ImportError as error:
        raise ConfigError(f"the page needs {error.name}: install it with {install('ui')}") from None
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()  # before the address is printed: a program may ask at once
    except OSError as error:
        raise ConfigError(
            f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0"
        ) from None
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    typer.echo(f"the runs in {folder}: {address} (Ctrl-C ends it)")
    config = uvicorn.Config(
        application(folder), log_level="warning", timeout_graceful_shutdown=1, lifespan="off"
    )
    uvicorn.Server(config).run(sockets=[listening])
