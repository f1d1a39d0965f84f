"""The container images of the project, built without docker: `make images`."""
