"""Passes that find one operator in what an exporter spelled out in many."""
