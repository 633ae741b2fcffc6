"""Decoders: one sample's bytes to an array, as frozen values of the plan."""
