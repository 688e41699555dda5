"""Distributed NoScope, reproduced: a difference detector, a small network and several servers; start with `system`."""
