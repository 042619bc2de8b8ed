"""Measuring models: extrapolation by length and by resolution, question answering, diagnostics, reports."""
