"""Any of our models as a folder that Hugging Face's transformers loads with trust_remote_code=True.

configuration_cofrgenet.py and modeling_cofrgenet.py run there. packing.py copies them and the model's code
into the folder; training/hugging_face_tokenizer.py writes the tokenizer.
"""
