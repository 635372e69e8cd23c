"""tunewire side by side with its peers: `benchmarks/bench.py` is the command.

`roster` says who they are and how each is set up, `environments` installs them, `driving` runs one, `pairing` measures two
in turn, `report` prints and `bars` judges. What runs in a peer's own environment is in the folder `drivers`, and
imports nothing from here.
"""
