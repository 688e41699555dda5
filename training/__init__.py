"""`python -m training`: trains the networks of the shipped models on frames of the synthetic drive, in a checkout.

Start with `recipe_training`, which chooses the training for a recipe.
"""
