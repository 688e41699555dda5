"""The TensorFlow engine: frozen graphs, SavedModels and Keras files, all run as one GraphDef session.

Start with `engine`; `library` is the only place that imports TensorFlow.
"""
