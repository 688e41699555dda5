"""The TensorFlow engine: frozen graphs, SavedModels and Keras files, each run as one GraphDef in a session.

Start with `engine`; `runtime` is the only module that imports TensorFlow.
"""
