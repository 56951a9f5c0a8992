"""Containers by the vendor's compiler."""
