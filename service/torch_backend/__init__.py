"""`torch.compile(m, backend="relaxc")`: each graph that dynamo captures goes through the store, or runs eagerly"""
