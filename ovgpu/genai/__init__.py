"""Generation of text: rewrites of a decoder that choose tokens on its device, and what they take."""
