"""Training of the classifiers and the object detector on rendered scenes.

Start with `scene_training`; `scene_tasks` lists what can be trained.
"""
