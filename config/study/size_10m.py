# Overlay: Ten times the study's parameters: 10.6 million without the embeddings in the dense model.
#   python train.py config/study/dense.py config/study/size_10m.py --out_dir=out/arm
n_layer = 6
n_embd = 384
n_head = 6
