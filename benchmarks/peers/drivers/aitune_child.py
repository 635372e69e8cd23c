"""AITune's child, which sends back what it receives."""

from aitune_ipc import ipc


def main() -> None:
    """Until the parent closes its end."""
    child = ipc.ChildIpc()
    try:
        while True:
            child.send(child.receive())
    except ipc.IpcError:
        pass  # the parent's way to end it


if __name__ == "__main__":
    main()
