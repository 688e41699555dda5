# An image with models only, from which workers copy them at their start. Build it in your model repository:
#
#   docker build -f kubernetes/models.Dockerfile -t skylane-models:1.0.0 models
FROM busybox:1.37
COPY . /models
