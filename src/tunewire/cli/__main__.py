"""`python -m tunewire.cli`: the command line, where its script is not installed."""

import sys

from tunewire.cli import main

sys.exit(main())
