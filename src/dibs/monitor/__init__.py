"""Scans of a store from outside, and what is made of them: the exporter, samples, history, the wait-for graph."""
