"""Counts the classes that a model sees in a bag, without a broker: `python model_on_bag.py BAG [MODEL]`."""

import sys

import numpy as np

import skylane

bag, name = sys.argv[1], (*sys.argv[2:], "road-small")[0]
pixels = np.zeros(256, np.int64)
with skylane.Model(name) as model:
    for image, topic, stamp_ns in skylane.open_bag(bag):
        mask = model.predict(image)
        pixels += np.bincount(mask.ravel(), minlength=256)
        print(f"{topic} at {stamp_ns}: {model.class_names[np.bincount(mask.ravel())[:255].argmax()]}")
shares = 100 * pixels[:255] / pixels[:255].sum()  # 255 marks pixels that the model did not see.
for class_id in np.argsort(-shares)[:5]:
    print(f"{model.class_names[class_id]:>12}: {shares[class_id]:.1f} %")
