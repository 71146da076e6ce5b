# Overlay: Dense Synthesizer, whose attention weights depend on each token alone.
#   python train.py config/recall/base.py config/recall/synthesizer.py --out_dir=out/mqar_synthesizer
attention = "synthesizer"
