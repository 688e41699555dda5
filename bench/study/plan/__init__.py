"""What a study varies, and in which order its runs take place.

Start with `plan`.
"""
