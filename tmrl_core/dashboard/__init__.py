"""The live page: a browser shows a run that learns, in words and curves, and sends orders of an operator."""
