# Overlay: ReLU squared in the MLP.
#   python train.py config/study/dense.py config/study/rope.py config/study/relu2.py --out_dir=out/arm
mlp_activation = "relu2"
