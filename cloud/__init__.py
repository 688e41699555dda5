"""The cloud node, also called worker: receives frames, runs a model on them and sends the results back.

Start with `run`, which builds a worker from its configuration, then `node`, which connects frontends, serving and models.
"""
