"""`python -m tunewire`: the command line, where its script is not on the path."""

import sys

from tunewire.cli import main

sys.exit(main())
