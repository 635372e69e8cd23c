"""One module per device library. Each is imported in a worker, when a measurement needs it, and never in the
parent."""
