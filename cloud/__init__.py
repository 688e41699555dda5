"""The cloud node, also called worker: receives frames, runs a model on them and sends the results back.

Start with `node`, which connects frontends, serving and models.
"""
