"""The wire: frames, messages and codecs, without any input or output. docs/wire.md shows it byte by byte."""
