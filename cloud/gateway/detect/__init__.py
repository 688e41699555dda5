"""`POST /api/detect`: one image in, the model's result out.

Start with `route`.
"""
