"""``python -m simplicia`` is ``simplicia``."""

import sys

from simplicia.cli import main

if __name__ == "__main__":
    sys.exit(main())
