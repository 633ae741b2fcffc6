"""``python -m spiral_stream`` is the ``spiral`` command."""

from spiral_stream.commands.cli import main

if __name__ == "__main__":
    main()
