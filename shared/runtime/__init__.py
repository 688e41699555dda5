"""Processes, memory and health of this process, and facts about this machine."""
