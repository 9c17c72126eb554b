"""Which architectures vLLM has a model class for. Facts, by the names config.json's `architectures` uses.

Source: vLLM 0.33.0, model_executor/models/registry.py. A class that Transformers alone has may still run through vLLM's
Transformers backend, which is not modelled.
"""

from __future__ import annotations

from fitkit.rules.vllm.settings import NEWEST, VLLMSettings, release_of

_NAMES = """
    AXK1ForCausalLM AfmoeForCausalLM AliceAIForCausalLM Alpamayo2Super ApertusForCausalLM ArceeForCausalLM
    AriaForConditionalGeneration AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration
    BailingMoeForCausalLM BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM
    BailingMoeV3VLForConditionalGeneration BeamForCausalLM BeeForConditionalGeneration BertForMaskedLM
    BertForSequenceClassification BertForTokenClassification BertModel BertSpladeSparseEmbeddingModel
    BgeM3EmbeddingModel Blip2ForConditionalGeneration BloomForCausalLM CLIPModel ChatGLMForConditionalGeneration
    ChatGLMModel ClefFlashForJointSchema ClefOmniForJointSchema Cohere2ForCausalLM Cohere2MoeForCausalLM
    Cohere2VisionForConditionalGeneration CohereAsrForConditionalGeneration CohereCompassForConditionalGeneration
    CohereForCausalLM ColBERTJinaRobertaModel ColBERTLfm2Model ColBERTModernBertModel ColModernVBertForRetrieval
    ColPaliForRetrieval ColQwen3 ColQwen3_5 ColUltraVBertForRetrieval Cosmos3EdgeForConditionalGeneration
    Cosmos3ForConditionalGeneration CwmForCausalLM D3ForSequenceClassification DbrxForCausalLM DeciLMForCausalLM
    DeepseekForCausalLM DeepseekOCR2ForCausalLM DeepseekOCRForCausalLM DeepseekV2ForCausalLM DeepseekV32ForCausalLM
    DeepseekV3BidirectionalModel DeepseekV3ForCausalLM DeepseekV41ForCausalLM DeepseekV4ForCausalLM
    DeepseekV4ForConditionalGeneration DeepseekVLV2ForCausalLM DiffusionGemmaForBlockDiffusion DomynEdgeForCausalLM
    DoryForCausalLM Dots3NoteForCausalLM DotsOCRForCausalLM Eagle2_5_VLForConditionalGeneration EmbeddingGemma2Model
    Emu3ForConditionalGeneration Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Ernie4_5_VLMoeForConditionalGeneration
    Exaone4ForCausalLM Exaone4_5_ForConditionalGeneration ExaoneForCausalLM ExaoneMoEForCausalLM
    ExaoneMoeForCausalLM FalconForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM
    FireRedASR2ForConditionalGeneration FlexOlmoForCausalLM FlintForCausalLM FunASRForConditionalGeneration
    FunAudioChatForConditionalGeneration GLM4VForCausalLM GPT2ForSequenceClassification GPT2LMHeadModel
    GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoXForCausalLM Gemma2ForCausalLM Gemma2Model Gemma3ForCausalLM
    Gemma3ForConditionalGeneration Gemma3TextModel Gemma3nForCausalLM Gemma3nForConditionalGeneration
    Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration GemmaForCausalLM
    Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM Glm4vForConditionalGeneration
    Glm4vMoeForConditionalGeneration Glm5NextForCausalLM Glm5NextForConditionalGeneration
    GlmAsrForConditionalGeneration GlmForCausalLM GlmMoeDsaForCausalLM GlmOcrForConditionalGeneration
    GptOssForCausalLM Granite4VisionForConditionalGeneration GraniteForCausalLM GraniteMoeForCausalLM
    GraniteMoeHybridForCausalLM GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM GraniteSWAForCausalLM
    GraniteSpeechForConditionalGeneration GraniteSpeechPlusForConditionalGeneration GteModel
    GteNewForSequenceClassification GteNewModel H2OVLChatModel HCXVisionV2ForCausalLM HF_ColBERT HYV3ForCausalLM
    HYV4ForCausalLM HfMoondream HrmTextForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
    HunYuanVLForConditionalGeneration HyperCLOVAXForCausalLM IQuestCoderForCausalLM IQuestLoopCoderForCausalLM
    Idefics3ForConditionalGeneration InklingForCausalLM InklingForConditionalGeneration InternLM2ForCausalLM
    InternLM2ForRewardModel InternLM3ForCausalLM InternS1ForConditionalGeneration
    InternS1ProForConditionalGeneration InternS2MobiusForConditionalGeneration
    InternS2PreviewForConditionalGeneration InternVLChatModel InternVLForConditionalGeneration
    IsaacForConditionalGeneration Jais2ForCausalLM JambaForCausalLM JambaForSequenceClassification
    JinaEmbeddingsV5Model JinaForRanking JinaVLForRanking K2HorizonForCausalLM KananaVForConditionalGeneration
    KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration
    KimiK3ForConditionalGeneration KimiLinearForCausalLM KimiVLForConditionalGeneration Kolibri1ForCausalLM
    LLaMAForCausalLM LagunaForCausalLM Lfm2BidirectionalModel Lfm2ForCausalLM Lfm2MoeForCausalLM
    Lfm2VlForConditionalGeneration LightOnOCRForConditionalGeneration Llama4ForCausalLM
    Llama4ForConditionalGeneration LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel
    LlamaForCausalLM LlamaModel LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel Llama_Nemotron_Nano_VL
    LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
    LlavaOnevision2ForConditionalGeneration LlavaOnevisionForConditionalGeneration LongcatFlashForCausalLM
    LongcatFlashNgramForCausalLM Mamba2ForCausalLM MambaForCausalLM MellumForCausalLM MiDashengLMModel
    MiMoForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM MiniCPM3ForCausalLM
    MiniCPMForCausalLM MiniCPMO MiniCPMOcrForConditionalGeneration MiniCPMV MiniCPMV4_6ForConditionalGeneration
    MiniCPMV4_7ForConditionalGeneration MiniMaxM2ForCausalLM MiniMaxM3SparseForCausalLM
    MiniMaxM3SparseForConditionalGeneration Ministral3ForCausalLM Mistral3ForConditionalGeneration
    MistralForCausalLM MistralLarge3ForCausalLM MistralModel MixtralForCausalLM ModernBertForSequenceClassification
    ModernBertForTokenClassification ModernBertModel ModernVBertModel Molmo2ForConditionalGeneration
    MolmoForCausalLM Moondream3ForCausalLM MoonshotKimiaForCausalLM MossAudioModel
    MossTranscribeDiarizeForConditionalGeneration MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration
    MuseSparkForConditionalGeneration NVLM_D NanbeigeForCausalLM NemotronForCausalLM NemotronHForCausalLM
    NemotronHPuzzleForCausalLM NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3
    NemotronH_Super_Omni_Reasoning_V3 NemotronParseForConditionalGeneration NomicBertModel OPTForCausalLM
    Olmo2ForCausalLM Olmo3ForCausalLM OlmoForCausalLM OlmoHybridForCausalLM OlmoeForCausalLM
    OpenAIPrivacyFilterForTokenClassification OpenCUAForConditionalGeneration OpenPanguVLForConditionalGeneration
    OpenVLAForActionPrediction OpsColQwen3Model OrionForCausalLM Ovis Ovis2_5 Ovis2_6ForCausalLM
    Ovis2_6_MoeForCausalLM PaddleOCRVLForConditionalGeneration PaliGemmaForConditionalGeneration
    PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM Param2MoEForCausalLM Phi3ForCausalLM
    Phi3VForCausalLM Phi4ForCausalLMV Phi4MMForCausalLM PhiForCausalLM PhiMoEForCausalLM
    PixtralForConditionalGeneration Plamo3ForCausalLM QianfanOCRForConditionalGeneration
    Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model
    Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel
    Qwen2_5_VLForConditionalGeneration Qwen3ASRForConditionalGeneration Qwen3ASRForcedAlignerForTokenClassification
    Qwen3ASRRealtimeGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM
    Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
    Qwen3VLNemotronEmbedModel Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM
    Qwen3_5MoeForConditionalGeneration Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration
    RForConditionalGeneration RadioMBartPrefixForCausalLM Rnj1ForCausalLM RobertaForMaskedLM
    RobertaForSequenceClassification RobertaForTokenClassification RobertaModel SarvamMLAForCausalLM
    SarvamMoEForCausalLM SeedOssForCausalLM SiglipModel SkyworkR1VChatModel SmolLM3ForCausalLM
    SmolVLMForConditionalGeneration SolarForCausalLM StableLmForCausalLM Starcoder2ForCausalLM Step1ForCausalLM
    Step3TextForCausalLM Step3VLForConditionalGeneration Step3p5ForCausalLM Step3p7ForConditionalGeneration
    Step5ForCausalLM Step5ForConditionalGeneration StepVLForConditionalGeneration TeleChat2ForCausalLM
    TeleChat3ForCausalLM TeleFLMForCausalLM Terratorch UltravoxModel UnlimitedOCRForCausalLM VaultGemmaForCausalLM
    VibeVoiceAsrForConditionalGeneration VoxtralForConditionalGeneration VoxtralRealtimeGeneration
    VoyageQwen3BidirectionalEmbedModel WhisperForConditionalGeneration XLMRobertaForSequenceClassification
    XLMRobertaForTokenClassification XLMRobertaModel Zamba2ForCausalLM
"""
KNOWN = frozenset(_NAMES.split())
# Heads vLLM puts on any decoder it has.
HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForTextEncoding",
    "ForRewardModel",
    "EmbeddingModel",
    "Model",
)

# Dropped: the last version that had the class.
DROPPED: dict[str, str] = {
    name: version
    for version, names in (
        (
            "0.9.2",
            """
            Phi3SmallForCausalLM
            """,
        ),
        (
            "0.10.2",
            """
            DonutForConditionalGeneration MllamaForConditionalGeneration MotifForCausalLM Phi4FlashForCausalLM
            """,
        ),
        (
            "0.12.0",
            """
            Phi4MultimodalForCausalLM
            """,
        ),
        (
            "0.22.0",
            """
            JAISLMHeadModel
            """,
        ),
        (
            "0.23.0",
            """
            BaiChuanForCausalLM BaichuanForCausalLM BambaForCausalLM Dots1ForCausalLM ErnieForSequenceClassification
            ErnieForTokenClassification ErnieModel InternLM2VEForCausalLM InternLMForCausalLM MiniMaxForCausalLM
            MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM MiniMaxVL01ForConditionalGeneration QWenLMHeadModel
            QwenVLForConditionalGeneration Tarsier2ForConditionalGeneration XverseForCausalLM
            """,
        ),
        (
            "0.24.0",
            """
            AquilaForCausalLM AquilaModel AyaVisionForConditionalGeneration Grok1ForCausalLM Grok1ModelForCausalLM
            MantisForConditionalGeneration MusicFlamingoForConditionalGeneration TarsierForConditionalGeneration
            """,
        ),
        (
            "0.25.0",
            """
            FuyuForCausalLM PersimmonForCausalLM TeleChatForCausalLM
            """,
        ),
        (
            "0.26.0",
            """
            OuroForCausalLM Plamo2ForCausalLM
            """,
        ),
        (
            "0.28.0",
            """
            ArcticForCausalLM ChameleonForConditionalGeneration Cheers CheersForConditionalGeneration
            Fairseq2LlamaForCausalLM FireRedLIDForConditionalGeneration GritLM HCXVisionForCausalLM MPTForCausalLM
            MptForCausalLM PrithviGeoSpatialMAE RWForCausalLM StableLMEpochForCausalLM
            """,
        ),
    )
    for name in names.split()
}


def refusal(settings: VLLMSettings, architecture: str) -> str:
    """Why vLLM has no class for it, in one sentence; empty where it has one, or where no architecture is named."""
    if not architecture or architecture in KNOWN:
        return ""
    if any(architecture.endswith(head) and architecture.removesuffix(head) + "ForCausalLM" in KNOWN for head in HEADS):
        return ""
    last = DROPPED.get(architecture)
    if last is None:
        return f"vLLM {NEWEST} has no model class for architecture {architecture}."
    if release_of(settings.version) > release_of(last):
        return f"vLLM dropped architecture {architecture} after version {last}."
    return ""
